"""Under which licence a checkpoint says it is: the front matter of its README.md, as model hubs write it."""

import re

import yaml

from qpack_packager.checkpoint.model_text import ModelText
from qpack_schemas.errors import InputError

README = "README.md"
_FRONT_MATTER = re.compile(r"---\n(.*?\n)---(?:\n|\Z)", re.DOTALL)
_LONGEST = 200  # characters of a name


def declared_license(text: ModelText) -> str | None:
    """Such as `apache-2.0`; the `license_name` of one that is called `other`. None if nothing is said.

    Source of the fields: https://huggingface.co/docs/hub/model-cards#model-card-metadata. Nothing else depends on the
    README, so one that can't be read says nothing."""
    if README not in text:
        return None
    try:
        found = _FRONT_MATTER.match(text.text(README))
        card = yaml.safe_load(found[1]) if found else None
    except (InputError, yaml.YAMLError):
        return None
    if not isinstance(card, dict):
        return None
    said = card.get("license")
    if said == "other":
        said = card.get("license_name", said)
    return said if isinstance(said, str) and 0 < len(said) <= _LONGEST and said.isprintable() else None
