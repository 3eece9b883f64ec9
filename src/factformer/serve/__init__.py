"""A server of one bundle: predictions over HTTP and a page to play with; `factformer serve` is made of it.

Its packages, starlette and uvicorn, are the extra ``serve``. Without them only `factformer.serve.launch` is importable.
"""
