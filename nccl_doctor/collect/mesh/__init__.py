"""The port mesh, in which every host dials every other host."""
