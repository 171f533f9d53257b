"""Generated from proto/ by `make proto`; never edited. Source of truth: proto/warpseal/pb, proto/warpseal/v1."""
