"""See the package."""

from tests import peers

peers.make()
