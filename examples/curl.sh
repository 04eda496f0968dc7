#!/bin/sh
# Four different answers to one request: sh examples/curl.sh
# NPROXY_URL: where nproxy listens. MODEL: the model's id there.
set -eu

url=${NPROXY_URL:-http://127.0.0.1:8000}
model=${MODEL:-smollm2-135m-instruct}

curl --silent --show-error --fail-with-body "$url/v1/chat/completions" \
  --header 'content-type: application/json' \
  --data "{\"model\": \"$model\", \"n\": 4, \"temperature\": 0.7, \"top_p\": 0.9, \"max_tokens\": 60,
           \"messages\": [{\"role\": \"user\", \"content\": \"Give me one idea for a rainy afternoon.\"}]}"
echo
