#!/bin/sh
# Lays a bundled GGUF file out the way Ollama keeps its models, so that nothing is ever pulled, and starts the server.
#
#     serve_ollama.sh CONFIG DIRECTORY FILE DIGEST HOST PORT NAME
#
# CONFIG holds ollama-manifest.json, and ollama-blob-DIGEST for each of the small parts. The weights are
# DIRECTORY/FILE with the SHA-256 DIGEST; they are linked, not copied. NAME is the model's name in the API.
set -eu

config=$1 directory=$2 file=$3 digest=$4 host=$5 port=$6 name=$7
models=${OLLAMA_MODELS:?names the directory of models}

mkdir -p "$models/blobs" "$models/manifests/registry.ollama.ai/library/$name"
ln -sf "$directory/$file" "$models/blobs/sha256-$digest"
for part in "$config"/ollama-blob-*; do
    cp -f "$part" "$models/blobs/sha256-${part##*/ollama-blob-}"
done
cp -f "$config/ollama-manifest.json" "$models/manifests/registry.ollama.ai/library/$name/latest"

case $host in
*:*) host="[$host]" ;;
esac
OLLAMA_HOST=$host:$port
export OLLAMA_HOST
exec ollama serve
