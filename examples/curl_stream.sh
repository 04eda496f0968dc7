#!/bin/sh
# Stream three answers; each event brings a piece of one of them: sh examples/curl_stream.sh
# NPROXY_URL: where nproxy listens. MODEL: the model's id there.
set -eu

url=${NPROXY_URL:-http://127.0.0.1:8000}
model=${MODEL:-smollm2-135m-instruct}

curl --silent --show-error --fail-with-body --no-buffer "$url/v1/chat/completions" \
  --header 'content-type: application/json' \
  --data "{\"model\": \"$model\", \"n\": 3, \"temperature\": 0.7, \"max_tokens\": 16, \"stream\": true,
           \"stream_options\": {\"include_usage\": true},
           \"messages\": [{\"role\": \"user\", \"content\": \"Name a color.\"}]}"
