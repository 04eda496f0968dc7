#!/bin/sh
# Four different answers to one request: sh examples/curl.sh
# OPENAI_BASE_URL: where nproxy listens, with /v1. OPENAI_API_KEY: a key of it. MODEL: the model's id there.
set -eu

url=${OPENAI_BASE_URL:-http://127.0.0.1:8000/v1}
key=${OPENAI_API_KEY:-unused}
model=${MODEL:-smollm2-135m-instruct}

curl --silent --show-error --fail-with-body "$url/chat/completions" \
  --header "authorization: Bearer $key" \
  --header 'content-type: application/json' \
  --data "{\"model\": \"$model\", \"n\": 4, \"temperature\": 0.7, \"top_p\": 0.9, \"max_tokens\": 60,
           \"messages\": [{\"role\": \"user\", \"content\": \"Give me one idea for a rainy afternoon.\"}]}"
echo
