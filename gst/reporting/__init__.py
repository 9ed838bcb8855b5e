"""HTML reports of placements, trainings and the demo.

A record of JSON values goes in; the text of one HTML page comes out. Read `page.py`, then `placement.py`.
"""
