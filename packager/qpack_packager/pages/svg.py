"""SVG elements. Places along the width are percentages, so that a chart fills whatever it stands in, and text keeps its
size; heights are in pixels."""

from markupsafe import Markup

from qpack_packager.pages.text import escaped

NARROW, ROOMY = 328, 480  # pixels: the least width of a chart, on a screen of 360; and from where `roomy` text is shown
FONT = 12  # pixels, as in page.css
LINE = 18  # from one line of text to the next
GUTTER, MARGIN = 58, 18  # left of a plot, where the y axis is written; right of it


def tag(name: str, *children: str, **attributes: object) -> Markup:
    """An element. Text is escaped; `class_` and `aria_label` become class and aria-label; None is left out."""
    pairs = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None)
    head = "".join(f' {key}="{escaped(_number(value))}"' for key, value in pairs)
    return Markup(f"<{name}{head}>{''.join(map(escaped, children))}</{name}>")


def percent(share: float) -> str:
    return f"{_number(100 * share)}%"


def titled(title: str) -> list[Markup]:
    """What a mark says when it is pointed at."""
    return [tag("title", title)] if title else []


def chart(label: str, height: int, *children: Markup, padding: tuple[int, int, int, int] = (0, 0, 0, 0)) -> Markup:
    """An image that `label` tells about to those who can't see it, `height` high within its `padding`: top, right,
    bottom, left. Places and percentages are those within it; only what is written may stand in the padding."""
    top, right, bottom, left = padding
    around = f"padding:{top}px {right}px {bottom}px {left}px" if any(padding) else None
    size = {"width": "100%", "height": top + height + bottom, "style": around}
    return tag("svg", *children, class_="chart", role="img", aria_label=label, **size)


def _number(value: object) -> str:
    """Three decimals at most, and none that is zero."""
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
