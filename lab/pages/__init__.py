"""The pages of results, written from the files under results/."""
