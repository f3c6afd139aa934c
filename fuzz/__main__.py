import sys
from pathlib import Path

# `python -m` puts the current directory first, where a kernel.py would stand before our package of that name. Kernels
# that are named as module:function are looked for there later.
if (cwd := str(Path.cwd())) in sys.path[:1] and not Path("fuzz", "__main__.py").is_file():
    del sys.path[0]

from fuzz.cli import main

sys.exit(main())
