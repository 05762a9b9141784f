"""One module a verb: options → one operation → one view."""
