"""What a package index shows of us."""

import re
from pathlib import Path

from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

ROOT = Path(__file__).parents[2]


def test_the_description_of_the_package_has_no_link_that_leads_nowhere():
    core = ProjectMetadata(str(ROOT), PluginManager()).core
    text = core.readme
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)

    assert core.readme_content_type == "text/markdown"
    assert text.startswith("# Manyhands\n")
    assert re.findall(r"\]\((?!https?:)[^)]*\)", outside) == []
    assert "![" not in outside


def test_the_description_keeps_what_a_reader_needs():
    text = ProjectMetadata(str(ROOT), PluginManager()).core.readme

    assert "| native API: everything the engine can do | HTTP and JSON | 7700 |" in text
    assert "| protocol | transport | port |\n|---|---|---|\n" in text
    assert "manyhands submit reverse 'stressed' --wait" in text
    assert "| | |" not in text


def test_dependencies_have_lower_and_upper_bounds():
    core = ProjectMetadata(str(ROOT), PluginManager()).core

    extras = core.optional_dependencies
    for dependency in [*core.dependencies, *extras["pickle"], *extras["postgres"]]:
        name = re.split(r"[<>=;]", dependency)[0]
        assert name == "tzdata" or re.search(r">=[\d.]+.*<\d|<\d.*>=[\d.]+", dependency), dependency
