"""Templates of HTML pages: text is escaped, and a name that nobody gives is an error."""

from __future__ import annotations

import jinja2


def page_templates(package: str, folder: str) -> jinja2.Environment:
    """The templates in a folder of one of our packages."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader(package, folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
