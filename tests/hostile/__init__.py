"""What liars may say, and what must not come of it."""
