"""Facts of hosts: asked, typed, and what their names mean."""
