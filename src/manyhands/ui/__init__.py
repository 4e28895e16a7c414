"""The web pages at ``/ui/``: rendered here, live by small scripts, readable without them.

How to add a page ``things``:

1. ``things.py`` with a class derived from ``Page`` (``page.py``): its ``show`` returns what the
template needs, its ``act`` does what a form asks for. Read through the store's search and the
index, as the API does, never by walking over all jobs: a page has 50 ms with a million of them. 2.
``templates/things.html``, which says ``{% extends layout %}`` and fills the block ``main``. A
refresh renders that block alone, so there is no second template for it. Parts that several pages
share are macros in ``parts.html``; drawings come from ``drawing.py``, words from ``words.py``. Rows
that may move have an ``id``; what a refresh must not touch, ``data-keep``. 3. A line in ``PAGES``
in ``site.py``.

No inline script, no ``style`` attribute: the content security policy forbids both. Whatever comes
from outside passes ``shown`` (names) or stands in a ``pre`` made by ``words.visible``.
"""
