"""Finished runs as something one would show: selection, tables, figures, one self-contained page.

records     what run folders hold            selection    which cell of a grid, on what budget
tables      text, HTML, CSV, LaTeX           figures      curves, heat-maps, bars, as pictures
page        all of it in one HTML file
"""
