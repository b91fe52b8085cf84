"""The closure proof: what every native file in wheels and images needs, held against the target hardware.

`elf` and `fatbin` read one file, `wheel` and `image` read what holds such files, `facts` is what they find,
`cuda` knows drivers and toolkits, `closure` judges, `table` shows. Only `wheel` and `image` touch the disk.
"""
