"""The sections of the page that `gst.reporting.report.render` puts together: text in, HTML out."""
