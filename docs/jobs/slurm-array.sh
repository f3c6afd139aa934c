#!/usr/bin/env bash
# A fuzz run on a Slurm cluster: an array of tasks, each of which does its part of the cases of one seed, and a job after
# them that merges their results into OUT/all.
#
#   docs/jobs/slurm-array.sh OUT TASKS [OPTION...]
#   docs/jobs/slurm-array.sh nights/friday 8 --max-time 8h --kernel my_package.attention:prefill
#
# OPTION... are those of `python -m fuzz run`. Run it at the root of the repository, in which `make .venv/.installed` has
# been run, on a file system that all nodes see. Change the resources below to what your cluster has; --max-time has to be
# shorter than --time by a few minutes. Without GPUs leave --gres out: the kernel runs in Triton's interpreter.
#
#SBATCH --job-name=mla-fuzz
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=08:30:00
set -euo pipefail

if [ -z "${SLURM_ARRAY_TASK_ID-}" ]; then # not on a node yet
    if [ $# -lt 2 ]; then
        sed -n '/^#SBATCH/q; 2,$s/^# \{0,1\}//p' "$0" >&2
        exit 2
    fi
    out=$1 tasks=$2
    shift 2
    mkdir -p "$out"
    array=$(sbatch --parsable --array="0-$((tasks - 1))" --output="$out/task-%a.log" "$0" "$out" "$@")
    # a task that failed, or was killed, is merged all the same with what it had found
    merge=$(sbatch --parsable --dependency="afterany:$array" --job-name=mla-fuzz-merge --output="$out/merge.log" \
        --wrap "$(printf '%q ' .venv/bin/python -m fuzz merge --out "$out/all") $(printf '%q' "$out")/shard-*")
    echo "array $array, then merge $merge; the report will be $out/all/report.html"
    exit
fi

out=$1
shift
exec .venv/bin/python -m fuzz run --seed "$SLURM_ARRAY_JOB_ID" --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" \
    --out "$out/shard-$SLURM_ARRAY_TASK_ID" "$@"
