#!/usr/bin/env bash
# The runs of record on one H100, in order of value, for as long as there is time:
#   experiments/record_h100.sh SECONDS NOVELS WIKITEXT2 TASKS OUT
#   SECONDS: the script ends this many seconds after its start. NOVELS, WIKITEXT2: folders of text. TASKS: a folder with the files
#   that configs/embedding_coupling/length.yaml names as tasks and similarity. OUT: a folder for one archive a run, without
#   checkpoints and states, small enough to carry home.
# Corners and layers multiply matrices in bfloat16 here (--matmul_precision), which their files do not say.
# Run again, it resumes each run in runs/h100 where it stopped. PYTHON: the interpreter (default: .venv/bin/python).
set -uo pipefail
if [ $# -ne 5 ]; then
    sed -n '2,8s/^# \?//p' "$0"
    exit 2
fi
end=$((SECONDS + $1)) novels=$(realpath -m "$2") wikitext=$(realpath -m "$3") tasks=$(realpath -m "$4") out=$(realpath -m "$5")
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
reserve=20 # seconds to write a checkpoint and the archives
mkdir -p "$out" runs/h100

archive() { # name: what the page, the claims and later analyses need, and not what training needs
    tar -C runs/h100 --exclude=checkpoints --exclude=states -czf "$out/$1.tar.gz" "$1"
}

record() { # name, script, arguments
    local name=$1 script=$2 left=$((end - SECONDS - reserve))
    shift 2
    if [ "$left" -lt 30 ]; then
        echo "$name: no time left"
        return
    fi
    local resume=()
    if [ -e "runs/h100/$name/run.json" ]; then
        resume=(--resume)
    fi
    timeout --signal=INT --kill-after="$reserve" "$left" "$python" "experiments/$script" "$@" --out "runs/h100/$name" "${resume[@]}"
    echo "$name: status $?, $((end - SECONDS)) s left"
    archive "$name"
}

# What is not finished here continues on another machine, from the archive and with --resume.
tagging="ewt: {train: $tasks/en_ewt-ud-train.conllu.gz, development: $tasks/en_ewt-ud-dev.conllu.gz"
tagging+=", test: $tasks/en_ewt-ud-test.conllu.gz, examples: 1000}"
polarity="polarity: {train: [$tasks/rt-polarity.neg, $tasks/rt-polarity.pos], examples: 2000}"
record causal causal_untying.py --config configs/causal_untying/h100.yaml --corpus "$novels"
for corner in v1024_d48 v1024_d128 v8192_d48 v8192_d128; do
    record "corner_$corner" causal_untying.py --config "configs/causal_untying/corner_$corner.yaml" --corpus "$novels" \
        --matmul_precision bfloat16
done
record layers layer_tying.py --config configs/layer_tying/length.yaml --corpus "$wikitext" --matmul_precision bfloat16
record coupling embedding_coupling.py --config configs/embedding_coupling/length.yaml --corpus "$novels" \
    --tasks "{$tagging, $polarity}" --similarity "$tasks/MEN_dataset_natural_form_full.txt"
