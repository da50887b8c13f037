#!/bin/sh
# What the images' health checks and Kubernetes' probes run, beside Triton:
#   probe.sh ready [MODEL]  MODEL, or every one that is loaded, takes requests
#   probe.sh live           Triton answers, and has lost no model's process, which it never mends by
#                           itself: `tandem serve` loads such a model again, and its heart beats anew
# Both ask HTTP, gRPC and the metrics; GRPC_PORT= leaves gRPC out, where it is off or speaks TLS.
# Triton before 2.67 calls a model ready whose engine is lost, and 2.51 one whose process has ended:
# what that one said last stays on /metrics. So the age of its heartbeat counts, a second as a rule.
set -eu
what=$1 model=${2:-}
triton=localhost:${HTTP_PORT:-8000} metrics=localhost:${METRICS_PORT:-8002}
grpc=${GRPC_PORT-8001} # empty: not asked
if [ -n "$model" ]; then path=models/$model/ready; else path=health/$what; fi

# Never through a proxy that the cluster names, nor for longer than a probe waits.
ask() { curl --noproxy '*' --max-time 4 --silent --show-error "$@"; }

ask --fail --output /dev/null "$triton/v2/$path"
# Triton 2.51 may lock its gRPC endpoint up while HTTP answers: any answer will do, also one that ends
# the stream (92). gRPC is HTTP/2, an empty message of it five zero bytes.
if [ -n "$grpc" ]; then
    answered=$(printf '\0\0\0\0\0' |
        ask --http2-prior-knowledge --header 'Content-Type: application/grpc' \
            --header 'TE: trailers' --data-binary @- --output /dev/null --dump-header - \
            "localhost:$grpc/inference.GRPCInferenceService/ServerLive") || [ $? = 92 ]
    case $answered in # by the front, for a Triton that it does not reach
    *'grpc-status: 14'*) echo 'gRPC is not reached' && exit 1 ;;
    esac
fi
said=$(ask --fail "$metrics/metrics") # alone: a pipe would hide its failure
printf '%s\n' "$said" |
    awk -v what="$what" -v model="$model" -v now="$(date +%s)" '
        function label(key) {
            match($0, key "=\"[^\"]*\"")
            return substr($0, RSTART + length(key) + 2, RLENGTH - length(key) - 3)
        }
        /^tandem_engine_up[{]/ { up[label("load")] = $NF }
        /^tandem_heartbeat_timestamp_seconds[{]/ {
            beat[label("load")] = $NF
            of[label("load")] = label("model")
        }
        END {
            if (model) well[model] = 0
            for (load in beat) {
                alive = now - beat[load] < 10
                # a model that takes the place of another one, or of a lost one, has its name
                well[of[load]] += alive && (what == "live" || up[load] == 1)
            }
            for (each in well)
                if (!well[each] && (!model || each == model)) {
                    print each (what == "live" ? " has lost its process" : " takes no requests")
                    failed = 1
                }
            exit failed
        }'
