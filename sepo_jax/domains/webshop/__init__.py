"""The web shop."""

from sepo_jax.domains.webshop.domain import WebShop

__all__ = ["WebShop"]
