"""What a stack file may say, validated whole; nothing here asks a node or knows Pulumi."""
