"""The real parts that tests use: engines, registries, hubs, images, disks; each started, used and removed by a fixture.

The fixtures are in `parts.fixtures`; everything else is ordinary Python that tests import.
"""
