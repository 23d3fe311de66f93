"""What the README tells people to type works as it stands there."""

import re
import subprocess
from pathlib import Path

from tests.bench.host import ROOT
from tests.cluster.cluster import GATEWAY_PORT, ME, Cluster

BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)
SCRIPT = "print('from the script')\nopen('/workspace/out.txt', 'w').write('what it wrote\\n')\n"


def test_the_commands_of_the_readme_work(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    blocks = BLOCK.findall((ROOT / "README.md").read_text())
    commands = "".join(block for block in blocks if "$ID" in block or "warren run" in block)
    environment = {
        "HOME": str(tmp_path),
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "WARREN_URL": f"https://{cluster.net.addresses['g1']}:{GATEWAY_PORT}",
        "WARREN_API_KEY": cluster.key,
        "SSL_CERT_FILE": str(cluster.folder / "ca" / "ca.pem"),
        "CURL_CA_BUNDLE": str(cluster.folder / "ca" / "ca.pem"),
    }
    argv = cluster.net.inside(ME, ["bash", "-c", f"set -eu\n{commands}"])
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    for expected in ("Linux sb-", "from the script", "what it wrote", "from curl", '"state":"stopped"', "Say hello", "completed"):
        assert expected in done.stdout, done.stdout
