"""Finished runs as something one would show: selection, tables, figures, one self-contained page.

records     what run folders hold            selection    which cell of a grid, on what budget
tables      text, HTML, CSV, LaTeX           figures      curves, heat-maps, bars, as pictures
page        all of it in one HTML file
"""

from fedslice.report.content import content as content
from fedslice.report.page import write as write
from fedslice.report.records import find as find
from fedslice.report.records import frame as frame
