"""What the README tells people to type works as it stands there."""

import re
import subprocess
from pathlib import Path

from tests.bench.host import ROOT, Host

BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)
SOCKET = "/run/warren/poold.sock"
SCRIPT = "print('from the script')\nopen('/workspace/out.txt', 'w').write('what it wrote\\n')\n"


def commands(host: Host) -> list[str]:
    """The README's blocks with `curl`, for our host and its image; the sandbox is destroyed last."""
    blocks = [block for block in BLOCK.findall((ROOT / "README.md").read_text()) if "curl" in block]
    lines = "".join(blocks).replace(SOCKET, str(host.socket)).replace('"python"', '"minimal"').splitlines()
    return sorted(lines, key=lambda line: "DELETE" in line)


def test_the_commands_of_the_readme_work(host: Host, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    script = "\n".join(["set -eu", *commands(host)])
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)  # noqa: PLW1510
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stdout
    for expected in ("Linux sb-", "from the script", "what it wrote", '"state":"stopped"'):
        assert expected in done.stdout, done.stdout
