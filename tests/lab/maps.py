"""A process whose map names a library that a link stands for."""

MAPS_A_LIE = """\
import mmap, os, signal, sys
folder, target = sys.argv[1:]
path = folder + "/libpython3.11.so.1.0"
with open(path, "wb") as file:
    file.write(open("/proc/self/exe", "rb").read())
with open(path, "rb") as file:
    held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE)
os.unlink(path)
os.symlink(target, path + " (deleted)")
os.write(1, b"x")
signal.pause()
"""
