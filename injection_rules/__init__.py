"""Rule files that come with ktitan: data only, one short file a family and the parts they share."""
