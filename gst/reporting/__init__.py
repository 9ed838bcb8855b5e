"""The sections of the page that `gst.report.render` puts together: text in, HTML out."""
