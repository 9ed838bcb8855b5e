"""Compare what is installed with the published advisories (pip-audit); where their database cannot be reached, say so.

python .ci/audit.py            exit status 1 if a package has a known vulnerability
"""

from __future__ import annotations

import json
import subprocess
import sys

LIMIT_S = 300


def main() -> int:
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off", "--skip-editable"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        packages = json.loads(ran.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError) as error:
        print(f"audit: WARNING: nothing audited, the database cannot be reached ({type(error).__name__})")
        return 0
    audited = [package for package in packages if "skip_reason" not in package]
    if not audited:
        print(f"audit: WARNING: none of {len(packages)} packages audited, the database cannot be reached")
        return 0
    found = [(package, each) for package in audited for each in package["vulns"]]
    for package, each in found:
        fixed = ", ".join(each["fix_versions"]) or "no version yet"
        print(f"audit: {package['name']} {package['version']}: {each['id']}, fixed in {fixed}")
    print(f"audit: {len(found)} known vulnerabilities in {len(audited)} of {len(packages)} packages audited")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
