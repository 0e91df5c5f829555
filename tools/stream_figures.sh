#!/bin/sh
# All figures about streaming, on a quiet machine, as root: tools/stream_figures.sh FOLDER [PYTHON_WITH_LLAMA_CPP]
#
# FOLDER (16 GB free, on the drive to be measured) keeps the models that are made and gets a JSON file for each comparison; a
# model moe12.gguf that lies there already is measured as well. PYTHON is the one that ktitan is installed in, KTITAN_PYTHON.
set -u
folder=$1
python=${KTITAN_PYTHON:-python3}
peer=${2:-$python}
here=$(dirname "$0")
ktitan="$python -P -m ktitan.cli.main"

made() { [ -e "$folder/$1" ] || $ktitan bench make "$folder/$1" $2 || exit 1; }
made moe12-random.gguf ""
made moe12-uniform.gguf "--uniform --seed 5"
made dense.gguf "--experts 0 --layers 32 --intermediate 8192 --format q8_0"
made small.gguf "--layers 4 --hidden 1024 --experts 64 --intermediate 512 --vocabulary 2048 --uniform"
[ -e "$folder/moe12-uniform-native" ] || $ktitan convert "$folder/moe12-uniform.gguf" "$folder/moe12-uniform-native"

stream() { # NAME MODEL OPTIONS
    echo "$1: $(cat /proc/loadavg)" >&2
    $ktitan bench stream "$folder/$2" $3 --json >"$folder/$1.json" || echo "$1 failed" >&2
}
for model in moe12 moe12-random moe12-uniform; do
    [ -e "$folder/$model.gguf" ] || continue
    stream "$model" $model.gguf "--limit 50% --pairs 3 --peer llamacpp --peer-python $peer"
done
stream dense dense.gguf "--limit 25% --pairs 3 --tokens 32"
stream native moe12-uniform-native "--limit 50% --pairs 5 --no-resident --peer ktitan --peer-model $folder/moe12-uniform.gguf"
$python -P "$here/../tests/support/throttled_drives.py" "$folder/small.gguf" >"$folder/striped.txt" || echo "striped failed" >&2
tail -n 1 "$folder/striped.txt"
