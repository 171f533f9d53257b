"""The resources of the Data API; answers are encoded from these objects, and the OpenAPI document is made of them."""
