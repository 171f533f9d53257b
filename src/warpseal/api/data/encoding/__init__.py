"""How values of the history become resources of the Data API: ids and amounts as texts, absent where not known."""
