"""The test suite, importable as a package: `from tests.helpers.engines import engine`."""
