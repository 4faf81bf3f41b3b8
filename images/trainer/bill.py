"""Complete the image's bill of materials: to what Python has installed, add what Debian has, check it, and print it.

usage: bill.py PYTHON_BILL DPKG_FOLDER OS_RELEASE BASE

PYTHON_BILL is what ``cyclonedx-py environment`` has written of the image's environment (JSON); DPKG_FOLDER a copy of
``/var/lib/dpkg`` and OS_RELEASE of ``/etc/os-release`` of the stage that becomes the image; BASE what that was made
from, as the build was told. Only for the image's build, which has cyclonedx-python-lib, the CycloneDX project's own
(requirements/image-build.txt).
"""

import json
import subprocess
import sys
from pathlib import Path

from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

RUNTIME, HOROVOD = "elastic-runtime", "horovod"
_FORMAT = "${db:Status-Abbrev}\t${Package}\t${Version}\t${Architecture}\n"


def main(python_bill: str, dpkg_folder: str, os_release: str, base: str) -> None:
    """Print the bill. Ends with status 1, and the reason, when it does not keep to CycloneDX's schema."""
    bill = Bom.from_json(json.loads(Path(python_bill).read_text()))  # type: ignore[attr-defined]  # made by a decorator
    for component in bill.components:
        _tidy(component)
    bill.components.update(_debian_packages(dpkg_folder, os_release))
    version = next(each.version for each in bill.components if each.name == RUNTIME)
    bill.metadata.component = Component(
        name="elastic-training/trainer",
        version=version,
        type=ComponentType.CONTAINER,
        bom_ref="image",
        properties=[Property(name="base", value=base)],
    )
    bill.register_dependency(bill.metadata.component, bill.components)
    text = JsonV1Dot6(bill).output_as_string(indent=1)
    if problem := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        sys.exit(f"the bill of materials does not keep to its schema: {problem}")
    sys.stdout.write(f"{text}\n")


def _tidy(component: Component) -> None:
    """Leave out where files lay in the build; Horovod was built from PyPI's source, so that is its origin."""
    local = [each for each in component.external_references if str(each.url).startswith("file:")]
    component.external_references.difference_update(local)
    if component.name == HOROVOD:
        component.purl = PackageURL("pypi", None, HOROVOD, component.version)


def _debian_packages(folder: str, os_release: str) -> list[Component]:
    release = dict(line.split("=", 1) for line in Path(os_release).read_text().splitlines() if "=" in line)
    name, version = release["ID"].strip('"'), release.get("VERSION_ID", "").strip('"')
    command = ["dpkg-query", f"--admindir={folder}", "--show", f"--showformat={_FORMAT}"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    packages = (line.split("\t") for line in listed.splitlines())
    return [
        Component(
            name=package,
            version=its_version,
            purl=PackageURL(
                "deb", name, package, its_version, {"arch": architecture, "distro": f"{name}-{version}".rstrip("-")}
            ),
            bom_ref=f"deb:{package}:{architecture}",
        )
        for status, package, its_version, architecture in packages
        if status.startswith("ii")
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
