"""Upgrades a store that no daemon uses, however long that takes; ended in the middle, it goes on there."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from warpseal.store.database import told
from warpseal.store.engine import create_private, server_parameters, writing_engine
from warpseal.store.errors import StoreUnusable
from warpseal.store.holding import held
from warpseal.store.migrate import Migrations, Progress, upgrade_all
from warpseal.store.settings import StoreSettings
from warpseal.store.store import store_url
from warpseal.store.url import Kind, StoreUrl


async def upgrade_store(
    settings: StoreSettings, folder: Path | None, progress: Progress, migrations: Migrations | None = None
) -> str:
    """Bring the store to this program's schema version and return that; `progress` is called from another thread.

    Raises StoreInUse naming the daemon that uses it, StoreTooNew, StoreUnusable.
    """
    url = store_url(settings, folder)
    if url is None or url.kind is Kind.OFF:
        raise StoreUnusable("off", "there is no store")
    parameters = server_parameters(url) if url.kind is Kind.POSTGRESQL else {}
    async with held(url, parameters, alone=True):
        return await asyncio.to_thread(_upgrade, url, progress, migrations or Migrations())


def _upgrade(url: StoreUrl, progress: Progress, migrations: Migrations) -> str:
    engine = writing_engine(url)
    try:
        if url.path is not None:
            create_private(url.path)
        return upgrade_all(engine, url.shown, progress, migrations)
    except OSError as error:
        raise StoreUnusable(url.shown, error.strerror or str(error)) from error
    except DBAPIError as error:
        raise StoreUnusable(url.shown, told(url, error)) from None
    finally:
        engine.dispose()
