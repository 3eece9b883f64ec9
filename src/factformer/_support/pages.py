"""Templates of HTML pages: text is escaped, and a name that nobody gives is an error."""

from __future__ import annotations

import jinja2

HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
"""
"""How every page begins: ``{% include "head.html" +%}``."""


def page_templates(package: str, folder: str) -> jinja2.Environment:
    """The templates in a folder of one of our packages."""
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package, folder), jinja2.DictLoader({"head.html": HEAD})]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
