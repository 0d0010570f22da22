"""Numbers with names in the judge's folders that are no matter of a verdict, and why."""

from __future__ import annotations

WORK = "how work is divided"
SHOWN = "what is shown of a verdict"
READ = "what is read at all, and how it is stored"
FORMS = "a number that has no other value"

NATIVE: dict[str, dict[str, str]] = {
    "harness/chain/external_chain.cpp": {"kNamed": SHOWN},
    "harness/judge/chain_figures.h": {"kNoFigure": FORMS, "kAnyWidth": FORMS},
    "harness/judge/details.cpp": {"kWorstGroups": SHOWN},
    "harness/judge/distribution.cpp": {"kFar": FORMS},
    "harness/judge/distribution.h": {"kOctaves": SHOWN, "kLowestOctave": SHOWN, "kUlpBins": SHOWN},
    "harness/judge/error_segments.h": {"kSegment": WORK},
    "harness/judge/float64_agreement.cpp": {"kSmallest": FORMS},
    "harness/judge/group_gains.cpp": {"kNeighbours": WORK},
    "harness/judge/group_sums.cpp": {"kPartElements": WORK, "kPartRows": WORK},
    "harness/judge/ill_conditioned.cpp": {"kMostNamed": SHOWN},
    "harness/judge/lanes.h": {"kCount": WORK},
    "harness/judge/limit_basis.cpp": {"kExact": FORMS, "kInfinity": FORMS},
    "harness/judge/localise.cpp": {
        "kShare": SHOWN, "kLongestList": SHOWN, "kMostRows": SHOWN, "kMostColumns": SHOWN,
    },
    "harness/judge/median.h": {"kMedianParts": WORK},
    "harness/judge/model_gates.cpp": {"kTop": SHOWN},
    "harness/judge/number_text.cpp": {"kLeast": SHOWN, "kMost": SHOWN},
    "harness/judge/reference_scales.cpp": {"kLargest": FORMS, "kMany": WORK},
    "harness/judge/status.h": {"kStatusCount": FORMS, "kExitUsage": FORMS},
    "harness/judge/sums.h": {"kChunk": WORK, "kAtOnce": WORK},
    "harness/judge/verdict.cpp": {"kTimes": SHOWN},
    "harness/recording/known_hashes.cpp": {"kDigits": READ},
    "harness/recording/payload.cpp": {"kRemembered": WORK},
    "harness/recording/payload.h": {"kMapped": WORK},
    "harness/recording/recording.cpp": {
        "kLargestRecording": READ, "kCacheBytes": WORK, "kMostItems": WORK,
    },
    "harness/recording/recording_alternatives.cpp": {"kMostPositions": READ},
    "harness/recording/recording_checkpoint.cpp": {
        "kMostTokens": READ, "kMostElements": READ, "kLongestLabel": READ,
    },
    "harness/recording/recording_fields.h": {"kOldestVersion": READ},
    "harness/recording/recording_trace.cpp": {"kMostRuns": READ},
    "harness/recording/sampled.h": {"kSketchWidth": READ},
    "harness/referee/explain.cpp": {"kMost": SHOWN},
    "harness/referee/known_bug.cpp": {"kLargestSearched": WORK, "kTakesAway": SHOWN},
    "harness/referee/referee_rule.cpp": {"kLittle": WORK, "kAffordable": WORK},
    "harness/referee/rounding_family.cpp": {"kMostSubsets": WORK, "kMostSubsetValues": WORK},
    "harness/replay/checkpoint_run.cpp": {"kJudged": WORK, "kRefereed": WORK},
    "harness/trace/open_choices.cpp": {"kMostNamed": SHOWN},
    "harness/trace/recorded_bugs.cpp": {"kRoundings": SHOWN, "kTakesMost": SHOWN, "kMost": SHOWN},
}  # fmt: skip

PYTHON: dict[str, dict[str, str]] = {
    "python_inspector/recorder/bench.py": {"TOKENS": SHOWN},
    "python_inspector/recorder/furthest.py": {"_SEED": FORMS},
    "python_inspector/recorder/large.py": {
        "ELEMENTS": WORK, "ELEMENTS_ON_DEVICE": WORK, "CHOSEN": WORK, "CHOSEN_ON_DEVICE": WORK,
        "MOST_ROWS": WORK, "PIECE": WORK, "PIECE_ON_DEVICE": WORK, "SHARE": WORK, "BESIDE": WORK,
        "BYTES_WHOLE": WORK, "BYTES_CHOSEN": WORK, "BYTES_COMPARED": WORK,
    },
    "python_inspector/recorder/measured.py": {"LARGE": WORK, "BELOW": FORMS, "ABOVE": FORMS},
    "python_inspector/recorder/pieces.py": {"MOST_ALONE": WORK},
    "python_inspector/recorder/provenance.py": {"BESIDE": WORK},
    "python_inspector/recorder/rows.py": {"_SEED": FORMS},
    "python_inspector/recorder/spreads.py": {
        "MOST": WORK, "ROOM": WORK, "ROOM_ON_DEVICE": WORK, "WAITING": WORK, "MANY": WORK,
    },
    "python_inspector/trace/arithmetic.py": {"U": FORMS, "SMALLEST": FORMS},
    "python_inspector/trace/blunders.py": {"TENFOLD": SHOWN},
    "python_inspector/trace/bugs.py": {"_LARGE": SHOWN},
    "python_inspector/trace/contraction.py": {"LARGE": WORK, "TIMES": WORK},
    "python_inspector/trace/gate_statistics.py": {
        "UNIT32": FORMS, "_SMALLEST": WORK, "_LARGEST": WORK,
    },
    "python_inspector/trace/gates.py": {"SAMPLE": WORK, "CERTAIN": FORMS},
    "python_inspector/trace/narrow_prod.py": {"_STEP": FORMS},
    "python_inspector/trace/planting.py": {
        "MOST_BUGS": SHOWN, "WORK": WORK, "ALIKE": SHOWN, "POSITIONS": SHOWN,
    },
    "python_inspector/trace/products.py": {"TF32_UNIT": FORMS},
    "python_inspector/trace/program.py": {"MOST_BYTES": WORK},
    "python_inspector/trace/room.py": {"WIDE": WORK, "OF_A_STACK": WORK},
    "python_inspector/trace/simulation.py": {
        "LARGE": WORK, "LARGE_ON_DEVICE": WORK, "LONG": WORK, "LIMIT": WORK,
        "LIMIT_ON_DEVICE": WORK, "SHARE_OF_DEVICE": WORK,
    },
    "python_inspector/trace/spread.py": {"_ROOM": WORK, "_ROOM_ON_DEVICE": WORK},
    "python_inspector/trace/stacks.py": {"_SWEEP": WORK},
    "python_inspector/trace/trials.py": {"SECONDS": SHOWN},
    "python_inspector/trace/truncation.py": {
        "_ROOM": WORK, "_ROOM_ON_DEVICE": WORK, "_LOSSES": WORK, "_LOSSES_ON_DEVICE": WORK,
        "_SHARED_ON_DEVICE": WORK, "_WIDE_ON_DEVICE": WORK, "_KEPT": FORMS, "_POWER": FORMS,
    },
}  # fmt: skip
