"""Flags that a recipe sets: those given go before."""

from typing import Any, Mapping

from absl import flags, logging

FLAGS = flags.FLAGS


def use_recipe(name: str, values: Mapping[str, Any], source: str) -> None:
    """Sets flags that were not given to the values of a recipe, and says so."""
    logging.info("The settings are those of the recipe %s. Their source: %s.", name,
                 source)
    taken = {flag: value for flag, value in values.items() if not FLAGS[flag].present}
    for flag, value in taken.items():
        FLAGS[flag].value = value
    for what, found in (("sets", taken), ("leaves as given", values.keys() - taken)):
        if found:
            logging.info("The recipe %s %s.", what, ", ".join(
                f"--{flag}={FLAGS[flag].value}" for flag in sorted(found)))
