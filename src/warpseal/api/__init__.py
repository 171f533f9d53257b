"""HTTP front end: servers, limits, the error table, and one package per API."""
