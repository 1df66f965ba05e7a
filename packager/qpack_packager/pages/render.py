"""From facts and a template to one HTML page. What a template is given is escaped, unless it is a chart."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from qpack_packager.commands.typeset import bytes_text, counted, percent
from qpack_packager.pages.text import visible


@dataclass(frozen=True)
class Figure:
    """A chart with what one needs to read it. `legend`: colour and what has it."""

    title: str
    chart: Markup
    caption: str  # what one sees and why it matters, in a sentence
    legend: Sequence[tuple[int, str]] = ()


def render(template: str, folder: Path = Path(__file__).parent, **facts: object) -> str:
    """The page that `template`, a file in `folder`, makes of `facts`. It may use the frame and the parts
    that lie beside this module."""
    loader = FileSystemLoader([folder, Path(__file__).parent], encoding="utf-8")
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"bytes_text": bytes_text, "counted": counted, "share": percent, "number": "{:,}".format}
    return environment.get_template(template).render(facts)


def _shown(value: object) -> object:
    return value if hasattr(value, "__html__") else visible(str(value))
