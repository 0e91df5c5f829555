"""Makes these tests a package, so that the browser ends with them: its event loop would disturb the tests after it."""
