"""What a stack file may say, validated as a whole. No node is asked here, and Pulumi is not needed."""
