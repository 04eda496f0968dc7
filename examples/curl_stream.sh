#!/bin/sh
# Stream three answers; each event brings a piece of one of them: sh examples/curl_stream.sh
# OPENAI_BASE_URL: where nproxy listens, with /v1. OPENAI_API_KEY: a key of it. MODEL: the model's id there.
set -eu

url=${OPENAI_BASE_URL:-http://127.0.0.1:8000/v1}
key=${OPENAI_API_KEY:-unused}
model=${MODEL:-smollm2-135m-instruct}

curl --silent --show-error --fail-with-body --no-buffer "$url/chat/completions" \
  --header "authorization: Bearer $key" \
  --header 'content-type: application/json' \
  --data "{\"model\": \"$model\", \"n\": 3, \"temperature\": 0.7, \"max_tokens\": 16, \"stream\": true,
           \"stream_options\": {\"include_usage\": true},
           \"messages\": [{\"role\": \"user\", \"content\": \"Name a color.\"}]}"
