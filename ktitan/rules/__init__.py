"""Rule files: YAML (or Python dicts and lists) to frozen data, with everything that is wrong found at once.

The grammar, version 1::

    version: 1
    vars: {gpu: "cuda:0"}                  # ${gpu} in any text; see ktitan.rules.variables
    include: [parts/attention.yaml]        # own rules first, then these; see ktitan.rules.compose
    rules:
      - match:                             # all that is given must hold
          name: model\\.layers\\.\\d+\\.mlp   # regex on the whole dotted path
          class: DeepseekV3MoE             # class name, or dotted path, of the module's class or a base of it
          layers: 3-60                     # 7, 3-60, 12-, 0,2,5-7 or a list of these
          not: {name: ..., class: ...}     # or a list of such mappings
        replace:
          class: experts.streamed          # registered operator, or keep
          kwargs: {home: nvme, device: "${gpu}"}
          prefill: {class: experts.cuda}   # class, kwargs or both
          source: experts.gguf
        optional: false
        recursive: true

Nothing named in a rule is imported here: classes are compared by name, operators are looked up by the plan. A rule file
of KTransformers (a list at the top) is translated; see ktitan.rules.ktransformers.
"""

from __future__ import annotations

from ktitan.rules.compose import parse_object, parse_rules, parse_text
from ktitan.rules.includes import packaged_folder
from ktitan.rules.ktransformers import to_yaml
from ktitan.rules.match import LayerSet, Match, layer_of
from ktitan.rules.nodes import Location
from ktitan.rules.placing import Placement, place_first
from ktitan.rules.ruleset import KEEP, PLACEMENT_KEYS, TIERS, Note, Replace, Rule, RuleSet

__all__ = [
    "KEEP",
    "PLACEMENT_KEYS",
    "TIERS",
    "LayerSet",
    "Location",
    "Match",
    "Note",
    "Placement",
    "Replace",
    "Rule",
    "RuleSet",
    "layer_of",
    "packaged_folder",
    "parse_object",
    "parse_rules",
    "parse_text",
    "place_first",
    "to_yaml",
]
