"""What every part of the package leans on: files, documents, texts, limits and lazy packages."""
