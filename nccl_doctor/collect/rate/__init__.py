"""The rate of each pair and rail, in rounds in which every host sends to one and receives from one."""
